import { html } from "../base/view.js";
import { segment } from "../base/api.js";
import { t } from "../base/i18n.js";
import { fullTime, time } from "../base/format.js";
import { href } from "../base/router.js";

/** The heading of a view, its explanation, and its controls. */
export function View({ title, text, controls, children }) {
  return html`<section class="view">
    <header class="view-header"><h1>${title}</h1><div class="view-controls">${controls}</div></header>
    ${text && html`<p class="view-text">${text}</p>`}
    ${children}
  </section>`;
}

/** A choice of one value in the controls of a view; the empty value is "all". */
export function Choice({ label, value, values, textOf, onChange, all = true }) {
  return html`<label class="choice"><span>${label}</span>
    <select value=${value ?? ""} onChange=${(event) => onChange(event.target.value)}>
      ${all && html`<option value="">${t("label.all")}</option>`}
      ${values.map((one) => html`<option value=${one}>${textOf ? textOf(one) : one}</option>`)}
    </select></label>`;
}

export function TextFilter({ label, value, onChange }) {
  return html`<label class="choice"><span>${label}</span>
    <input type="search" value=${value ?? ""} onChange=${(event) => onChange(event.target.value.trim())} /></label>`;
}

/** Names and values of one thing. Empty values are left out. */
export function Facts({ facts }) {
  return html`<dl class="facts">${facts.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`
    <div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Time({ at }) {
  return at ? html`<time datetime=${at} title=${fullTime(at)}>${time(at)}</time>` : null;
}

export function turnHref(id) {
  return href(`turns/${segment(id)}`);
}

/** The column of a time. */
export function timeColumn(key, label) {
  return { key, label, cell: (item) => html`<${Time} at=${item[key]} />` };
}

/** The words of a state, for a choice of states. */
export function stateText(state) {
  return t(`state.${state}`);
}
