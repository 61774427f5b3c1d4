import { createContext, useCallback, useContext, useEffect, useRef, useState } from "./view.js";

/**
 * The sign-in of the page: `{ client, live, me, can, user, mayName }`.
 *
 * `can("admin")` is whether the token has a scope. `user` is a store of the user who writes, and `mayName` whether
 * the token lets a person choose that user.
 */
export const SignedIn = createContext(null);

export function useSignedIn() {
  return useContext(SignedIn);
}

/** Return the name of the account of a token. */
export function accountOf(me) {
  return me.userId ?? me.label ?? me.name;
}

/** Whether a token may list what belongs to no user: a token without a user needs the scope `read` for it. */
export function canList(me) {
  return me.scopes.includes("read") || (me.userId !== null && me.scopes.includes("message"));
}

/**
 * Load a value, and load it again on request: `{ value, problem, isLoading, reload }`.
 *
 * A value stays while the next one loads, and a late answer to an earlier request is dropped.
 */
export function useLoad(load, dependencies) {
  const [state, setState] = useState({ value: null, problem: null, isLoading: true });
  const latest = useRef(0);
  const reload = useCallback(async () => {
    const own = ++latest.current;
    setState((before) => ({ ...before, isLoading: true }));
    try {
      const value = await load();
      if (own === latest.current) setState({ value, problem: null, isLoading: false });
    } catch (problem) {
      if (own === latest.current) setState((before) => ({ ...before, problem, isLoading: false }));
    }
  }, dependencies);
  useEffect(() => {
    reload();
    return () => { latest.current++; };
  }, [reload]);
  return { ...state, reload };
}

/** Call a function for each event of the gateway whose type is listed, and after a gap in the events. */
export function useLive(types, call) {
  const { live } = useSignedIn();
  const current = useRef(call);
  current.current = call;
  useEffect(() => live.subscribe((event) => {
    if (event.type === "reset" || types.includes(event.type)) current.current(event);
  }), [live, types.join()]);
}
