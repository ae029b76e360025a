// Entry: the tabs by URL hash (#now, #tables, #knobs, #events, #checkpoints, #runs, #details; #tables/3 opens a table), and all parts started.

import "./sign_in_link.js"; // first of all: it takes the code out of the address bar
import * as checkpoints from "./checkpoints.js";
import * as compared from "./compared.js";
import { byId } from "./dom.js";
import * as details from "./details.js";
import * as events from "./events.js";
import * as header from "./header.js";
import * as knobs from "./knobs.js";
import * as now from "./now.js";
import * as runs from "./runs.js";
import * as store from "./store.js";
import * as tables from "./tables.js";

const screens = { now, tables, knobs, events, checkpoints, runs, details };
const tabs = Object.keys(screens).map((name) => byId(`tab-${name}`));

function route() {
  const [name, rest] = location.hash.slice(1).split("/");
  const current = Object.hasOwn(screens, name) ? name : "now";
  if (byId(`screen-${current}`).hidden) scrollTo(0, 0);
  for (const [key, screen] of Object.entries(screens)) {
    const shown = key === current;
    byId(`screen-${key}`).hidden = !shown;
    const tab = byId(`tab-${key}`);
    tab.setAttribute("aria-selected", String(shown));
    tab.tabIndex = shown ? 0 : -1;
    if (shown) tab.parentElement.scrollLeft = tab.offsetLeft - 96; // a phone has no room for all of them
    if (shown) screen.show(rest ?? "");
    else screen.hide?.();
  }
}

/** Arrow keys move between the tabs, as in any tab list. */
function onTabKey(event) {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const at = tabs.indexOf(document.activeElement);
  if (move && at >= 0) {
    const next = tabs[(at + move + tabs.length) % tabs.length];
    location.hash = next.hash;
    next.focus();
    event.preventDefault();
  }
}

header.start();
for (const screen of Object.values(screens)) screen.start();
document.querySelector(".tabs").addEventListener("keydown", onTabKey);
addEventListener("hashchange", route);
route();
store.start();
compared.start();
