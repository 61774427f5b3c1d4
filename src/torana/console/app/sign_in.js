import { html, useState } from "./base/view.js";
import { t } from "./base/i18n.js";
import { Field, Form } from "./parts/controls.js";
import { LanguageChoice } from "./parts/preferences.js";

/** The page without a valid token. The token stays in memory, or until the tab is closed if the person asks for it. */
export function SignIn({ notice, onSignIn }) {
  const [isShown, setShown] = useState(false);
  return html`<main class="sign-in">
    <h1 class="brand">Torana</h1>
    <p>${t("signin.text")}</p>
    ${notice && html`<p class="note" role="status">${notice}</p>`}
    <${Form} submitLabel=${t("signin.submit")} onSubmit=${({ token, keep }) => onSignIn(token.trim(), keep === "on")}>
      <${Field} label=${t("signin.token")}>
        <input name="token" type=${isShown ? "text" : "password"} required autocomplete="off" spellcheck="false" autofocus />
      <//>
      <label class="check"><input type="checkbox" checked=${isShown} onChange=${(event) => setShown(event.target.checked)} /> ${t("signin.show")}</label>
      <label class="check"><input type="checkbox" name="keep" /> ${t("signin.keep")}</label>
    <//>
    <p class="hint">${t("signin.hint")} <code>torana console</code></p>
    <${LanguageChoice} />
  </main>`;
}
