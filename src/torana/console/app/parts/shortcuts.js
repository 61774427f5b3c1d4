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

/** Ignore typing until a second without it, or a click: it may be meant for the page that was here before. */
export function ignoreFirstKeys() {
  let last = performance.now();
  addEventListener("pageshow", (event) => { last = event.timeStamp; });
  addEventListener("focus", (event) => { if (last > 0) last = event.timeStamp; });
  addEventListener("pointerdown", () => { last = -1000; });
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || !/^(.|Enter|Tab)$/.test(event.key)) return;
    if (event.timeStamp < last + 1000) {
      last = event.timeStamp;
      event.preventDefault();
      event.stopImmediatePropagation();
    } else last = -1000;
  }, true);
}

export function ShortcutsDialog({ onClose }) {
  return html`<${Dialog} title=${t("shortcuts.title")} onClose=${onClose}>
    <dl class="shortcuts">${KEYS.map(([keys, label]) => html`<div><dt>${keys.split(" ").map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${t(label)}</dd></div>`)}</dl>
  <//>`;
}
