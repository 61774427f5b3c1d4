import { html } from "../base/view.js";
import { language, languageCodes, setLanguage, t } from "../base/i18n.js";
import { useSignedIn } from "../base/context.js";
import { local } from "../base/storage.js";
import { Store, useStore } from "../base/store.js";
import { Dialog, Field, Form } from "./controls.js";

const STORED = "torana.scheme";
const NAMES = { en: "English", de: "Deutsch", zh: "中文" };
const scheme = new Store(local.get(STORED) ?? "auto");

/** Show the page in the chosen colour scheme, or in that of the system. */
export function applyScheme(value = scheme.value) {
  if (value === "auto") delete document.documentElement.dataset.scheme;
  else document.documentElement.dataset.scheme = value;
}

export function LanguageChoice() {
  const current = useStore(language);
  return html`<label class="choice"><span class="hidden">${t("preferences.language")}</span>
    <select value=${current} onChange=${(event) => setLanguage(event.target.value)}>
      ${languageCodes.map((code) => html`<option value=${code} lang=${code}>${NAMES[code]}</option>`)}
    </select></label>`;
}

/** Choose the user who writes, with a token that may name users. */
export function UserDialog({ onClose }) {
  const { user } = useSignedIn();
  return html`<${Dialog} title=${t("user.title")} onClose=${onClose}>
    <${Form} submitLabel=${t("action.save")} onCancel=${onClose} onSubmit=${({ name }) => { user.set(name.trim()); onClose(); }}>
      <${Field} label=${t("label.user")} hint=${t("user.hint")}><input name="name" required maxlength="256" value=${user.value} /><//>
    <//>
  <//>`;
}

export function SchemeChoice() {
  const current = useStore(scheme);
  function choose(value) {
    local.set(STORED, value);
    scheme.set(value);
    applyScheme(value);
  }
  return html`<label class="choice"><span class="hidden">${t("preferences.scheme")}</span>
    <select value=${current} onChange=${(event) => choose(event.target.value)}>
      ${["auto", "light", "dark"].map((value) => html`<option value=${value}>${t(`scheme.${value}`)}</option>`)}
    </select></label>`;
}
