import { config } from "./base/page_data.js";
import { html, useEffect, useState } from "./base/view.js";
import { accountOf, useSignedIn } from "./base/context.js";
import { t } from "./base/i18n.js";
import { go, href, route } from "./base/router.js";
import { useStore } from "./base/store.js";
import { Chat } from "./chat/chat.js";
import { SearchDialog } from "./chat/search.js";
import { SessionList } from "./chat/session_list.js";
import { LanguageChoice, SchemeChoice, UserDialog } from "./parts/preferences.js";
import { ShortcutsDialog, useShortcuts } from "./parts/shortcuts.js";
import { VIEWS } from "./operate/views.js";

/** The page of a signed-in person: navigation at the side, one view beside it. */
export function Shell({ onSignOut }) {
  const { live, me, can, user, mayName } = useSignedIn();
  const { parts, query } = useStore(route);
  const connection = useStore(live.state);
  const writer = useStore(user);
  const [isMenuOpen, setMenuOpen] = useState(false);
  const [dialog, setDialog] = useState(null);
  const [isArchived, setArchived] = useState(false);
  const name = parts[0] ?? "chat";
  const views = VIEWS.filter((view) => view.isVisible({ can, me }));
  const view = views.find((one) => one.name === name);
  const close = () => setMenuOpen(false);

  useShortcuts({
    n: () => go("chat", { fresh: String(Date.now()) }),
    "/": () => can("read") && setDialog("search"),
    s: () => document.querySelector(".composer-text")?.focus(),
    "?": () => setDialog("shortcuts"),
  });
  useEffect(() => { document.title = `${view ? t(view.label) : t("chat.title")} · Torana`; });
  useEffect(close, [parts.join("/")]);

  return html`<div class="shell ${isMenuOpen ? "is-menu-open" : ""}">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>${t("label.skip")}</a>
    <button type="button" class="button icon menu-button" aria-label=${t("label.menu")} aria-expanded=${isMenuOpen} onClick=${() => setMenuOpen(!isMenuOpen)}>☰</button>
    <aside class="side" aria-label=${t("label.navigation")}>
      <a class="brand" href="#/chat">Torana</a>
      <div class="side-buttons">
        <a class="button primary" href=${href("chat", { fresh: "1" })} onClick=${(event) => { event.preventDefault(); go("chat", { fresh: String(Date.now()) }); close(); }}>${t("chat.new")}</a>
        ${can("read") && html`<button type="button" class="button plain" onClick=${() => setDialog("search")}>${t("search.title")}</button>`}
      </div>
      <div class="side-scroll">
        ${can("read") && html`<${SessionList} current=${name === "chat" ? parts[1] : null} isArchived=${isArchived} onNavigate=${close} />
          <button type="button" class="link side-archive" onClick=${() => setArchived(!isArchived)}>${isArchived ? t("sessions.show_current") : t("sessions.show_archived")}</button>`}
        ${views.length > 0 && html`<nav class="views" aria-label=${t("label.operate")}>
          <h3>${t("label.operate")}</h3>
          ${views.map((one) => html`<a key=${one.name} href=${href(one.name)} aria-current=${one === view ? "page" : undefined} onClick=${close}>${t(one.label)}</a>`)}
        </nav>`}
      </div>
      <footer class="side-footer">
        <${LanguageChoice} /><${SchemeChoice} />
        <button type="button" class="link" onClick=${() => setDialog("shortcuts")}>${t("shortcuts.title")}</button>
        <a class="link" href="docs" target="_blank" rel="noopener">${t("label.api")}</a>
        ${onSignOut && html`<button type="button" class="link" onClick=${onSignOut}>${t("signin.out")}</button>`}
        ${mayName && html`<button type="button" class="link" onClick=${() => setDialog("user")}>${t("user.as", { user: writer })}</button>`}
        <span class="hint">${accountOf(me)} · Torana ${config.version}</span>
      </footer>
    </aside>
    ${isMenuOpen && html`<div class="backdrop" onClick=${close}></div>`}
    <main class="main" id="main" tabindex="-1">
      ${connection === "lost" && html`<p class="connection" role="status">${t("label.lost")}</p>`}
      ${view ? html`<${view.component} parts=${parts.slice(1)} query=${query} />`
        : html`<${Chat} sessionId=${(can("read") && parts[1]) || null} turnId=${query.turn} page=${query.page ?? null} before=${query.before ?? null} fresh=${query.fresh} />`}
    </main>
    ${dialog === "user" && html`<${UserDialog} onClose=${() => setDialog(null)} />`}
    ${dialog === "search" && html`<${SearchDialog} onClose=${() => setDialog(null)} />`}
    ${dialog === "shortcuts" && html`<${ShortcutsDialog} onClose=${() => setDialog(null)} />`}
  </div>`;
}
