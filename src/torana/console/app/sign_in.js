import { html, useState } from "./base/view.js";
import { t } from "./base/i18n.js";
import { accountOf } from "./base/context.js";
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

/** The question before a link signs in; `me` is the account that is signed in, if there is one. */
export function SignInQuestion({ link, me, onSignIn, onCancel }) {
  return html`<main class="sign-in">
    <h1 class="brand">Torana</h1>
    <p>${t("signin.question", { account: link.user ?? link.createdBy })}</p>
    ${me && html`<p class="note">${t("signin.replaces", { account: accountOf(me) })}</p>`}
    <${Form} submitLabel=${t("signin.submit")} onSubmit=${onSignIn} onCancel=${onCancel} />
    <${LanguageChoice} />
  </main>`;
}
