/** The view library: html`…` makes elements, and hooks hold the state of components. */
import { h, render, Fragment, createContext, cloneElement } from "../../vendor/preact.js";
import { useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../../vendor/hooks.js";
import htm from "../../vendor/htm.js";

const html = htm.bind(h);

export {
  html, render, Fragment, createContext, cloneElement,
  useCallback, useContext, useEffect, useLayoutEffect, useMemo, useRef, useState,
};
