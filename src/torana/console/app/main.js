import { html, render, useEffect, useState } from "./base/view.js";
import { Client } from "./base/api.js";
import { SignedIn } from "./base/context.js";
import { applyLanguage, language, problemText, t } from "./base/i18n.js";
import { Live } from "./base/live.js";
import { go, route } from "./base/router.js";
import { local, session } from "./base/storage.js";
import { Store, useStore } from "./base/store.js";
import { ProblemNote, Spinner } from "./parts/controls.js";
import { applyScheme } from "./parts/preferences.js";
import { ignoreFirstKeys } from "./parts/shortcuts.js";
import { Shell } from "./shell.js";
import { SignIn, SignInQuestion } from "./sign_in.js";

const STORED = "torana.token";
const STORED_USER = "torana.user";

function App() {
  useStore(language);
  const [state, setState] = useState({ step: "starting" });
  useEffect(() => { start().then(setState); }, []);

  /** Return the first state: with a one-time code a question, since the link may be another person's. */
  async function start() {
    const code = takeCode();
    const before = await resume();
    if (!code || before.hasToken === false) return before;
    const client = new Client({ token: code });
    try {
      return { step: "asking", client, link: await client.get("v1/sign-in"), before };
    } catch (problem) {
      return before.me ? before : { step: "signed-out", notice: codeFailed(problem) };
    }
  }

  /** Return the state of a stored token, or of no token at all. */
  async function resume() {
    const stored = session.get(STORED);
    try {
      return await enter(stored);
    } catch (problem) {
      if (problem.status === 401) {
        session.remove(STORED);
        return { step: "signed-out", notice: stored ? t("signin.ended") : null };
      }
      return { step: "failed", problem };
    }
  }

  async function enter(token) {
    const onUnauthorized = () => {
      session.remove(STORED);
      setState((now) => {
        if (now.step === "signed-in") now.live.close();
        return { step: "signed-out", notice: now.step === "signed-in" ? t("signin.ended") : now.notice };
      });
    };
    const me = await new Client({ token }).get("v1/me");
    const client = new Client({ token, onUnauthorized });
    const can = (scope) => me.scopes.includes(scope);
    const mayName = me.userId === null && can("impersonate");
    const user = new Store(mayName ? local.get(STORED_USER) ?? me.name : me.userId);
    user.subscribe((name) => local.set(STORED_USER, name));
    return { step: "signed-in", client, me, can, user, mayName, live: new Live(client, me.name), hasToken: token !== null };
  }

  async function signIn(token, isKept) {
    const entered = await enter(token);
    if (isKept) session.set(STORED, token);
    setState(entered);
  }

  /** Use the one-time code, in place of the sign-in before. */
  async function signInByCode() {
    const { token } = await state.client.post("v1/sign-in").catch((problem) => {
      throw { message: codeFailed(problem) };
    });
    const entered = await enter(token);
    state.before.live?.close();
    session.remove(STORED);
    setState(entered);
  }

  function signOut() {
    state.live.close();
    session.remove(STORED);
    setState({ step: "signed-out", notice: null });
  }

  if (state.step === "starting") return html`<${Spinner} />`;
  if (state.step === "failed") return html`<main class="sign-in"><h1 class="brand">Torana</h1><${ProblemNote} problem=${state.problem} retry=${() => start().then(setState)} /></main>`;
  if (state.step === "asking") return html`<${SignInQuestion} link=${state.link} me=${state.before.me} onSignIn=${signInByCode} onCancel=${() => setState(state.before)} />`;
  if (state.step === "signed-out") return html`<${SignIn} notice=${state.notice} onSignIn=${signIn} />`;
  return html`<${SignedIn.Provider} value=${state}><${Shell} onSignOut=${state.hasToken ? signOut : null} /><//>`;
}

function codeFailed(problem) {
  return t("signin.code_failed", { detail: problemText(problem) });
}

/** Take the one-time code out of the address, so that it stays in no history. */
function takeCode() {
  const { parts, query } = route.value;
  if (parts[0] !== "sign-in") return null;
  history.replaceState(null, "", location.pathname);
  go("chat");
  return query.code ?? null;
}

/** Show the icon of the tab. Its address is no link of the page, so that every link works under a prefix. */
function showIcon() {
  const drawing = `<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><path d='M3 8c9 3 17 3 26 0M6 12v16M26 12v16M6 15h20'
    fill='none' stroke='#4f6d5b' stroke-width='3.5' stroke-linecap='round'/></svg>`;
  const icon = document.createElement("link");
  icon.rel = "icon";
  icon.href = `data:image/svg+xml,${encodeURIComponent(drawing)}`;
  document.head.append(icon);
}

ignoreFirstKeys();
showIcon();
applyLanguage();
applyScheme();
render(html`<${App} />`, document.getElementById("app"));
