import { html, useEffect, useRef } from "../base/view.js";
import { t } from "../base/i18n.js";
import { Dialog } from "./controls.js";

const KEYS = [["n", "shortcuts.new"], ["/", "shortcuts.search"], ["s", "shortcuts.write"], ["?", "shortcuts.show"],
  ["Enter", "shortcuts.send"], ["Shift Enter", "shortcuts.line"], ["Esc", "shortcuts.close"]];

/** Call a function for a single key, unless the key is typed into a field or belongs to the browser. */
export function useShortcuts(actions) {
  const current = useRef(actions);
  current.current = actions;
  useEffect(() => {
    function onKeyDown(event) {
      if (event.key === "Escape" && event.target.matches?.(".composer-text")) event.target.blur();
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
      const action = current.current[event.key];
      if (!action) return;
      event.preventDefault();
      action();
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}

/**
 * Ignore keys when the page appears or gets the focus, until a second without a key, or a click: they may be meant for
 * the page that was here before. A field that had the focus before keeps its keys, except Tab.
 */
export function ignoreFirstKeys() {
  let isNew, last;
  const begin = ({ timeStamp }) => { last = timeStamp; };
  const appear = (event) => { begin(event); isNew = true; };
  const settle = () => { last = -1000; isNew = false; };
  appear({ timeStamp: performance.now() });
  addEventListener("pageshow", appear);
  addEventListener("focus", begin);
  addEventListener("pointerdown", settle);
  addEventListener("keydown", (event) => {
    const { target, timeStamp } = event;
    if (timeStamp > last + 1000) return settle();
    if (!isNew && event.key !== "Tab" && target.closest?.("input, textarea")) return;
    begin(event);
    event.preventDefault();
    event.stopImmediatePropagation();
    if (isNew) target.blur?.();
  }, true);
}

export function ShortcutsDialog({ onClose }) {
  return html`<${Dialog} title=${t("shortcuts.title")} onClose=${onClose}>
    <dl class="shortcuts">${KEYS.map(([keys, label]) => html`<div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${t(label)}</dd></div>`)}</dl>
  <//>`;
}
