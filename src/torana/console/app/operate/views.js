/** The views of operators, in the order of the navigation. A view that a token may not read is not shown. */
import { canList } from "../base/context.js";
import { ApprovalsView } from "./approvals.js";
import { ConnectorsView, DeliveriesView, McpView } from "./connections.js";
import { MemoriesView, TokensView, UsersView } from "./people.js";
import { AuditView, LogsView, SettingsView } from "./records.js";
import { SchedulesView } from "./schedules.js";
import { SessionsView } from "./sessions.js";
import { SkillsView } from "./skills.js";
import { StatusView } from "./status.js";
import { TurnsView } from "./turns.js";
import { UsageView } from "./usage.js";

const operator = ({ can }) => can("admin");
const reader = ({ can }) => can("read");

export const VIEWS = [
  { name: "status", label: "status.title", component: StatusView, isVisible: operator },
  { name: "turns", label: "turns.title", component: TurnsView, isVisible: reader },
  { name: "sessions", label: "sessions.title", component: SessionsView, isVisible: reader },
  { name: "approvals", label: "approvals.title", component: ApprovalsView, isVisible: ({ me }) => canList(me) },
  { name: "memories", label: "memories.title", component: MemoriesView, isVisible: ({ can }) => can("memory") },
  { name: "schedules", label: "schedules.title", component: SchedulesView, isVisible: ({ me }) => canList(me) },
  { name: "usage", label: "usage.title", component: UsageView, isVisible: ({ can, me }) => can("admin") || (can("read") && me.userId !== null) },
  { name: "users", label: "users.title", component: UsersView, isVisible: operator },
  { name: "tokens", label: "tokens.title", component: TokensView, isVisible: operator },
  { name: "connectors", label: "connectors.title", component: ConnectorsView, isVisible: operator },
  { name: "deliveries", label: "deliveries.title", component: DeliveriesView, isVisible: operator },
  { name: "skills", label: "skills.title", component: SkillsView, isVisible: ({ can }) => can("skills") },
  { name: "mcp", label: "mcp.title", component: McpView, isVisible: operator },
  { name: "audit", label: "audit.title", component: AuditView, isVisible: operator },
  { name: "logs", label: "logs.title", component: LogsView, isVisible: operator },
  { name: "settings", label: "settings.title", component: SettingsView, isVisible: operator },
];
