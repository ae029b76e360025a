// Runs before the first paint, so that a remembered theme never flashes the other one.
"use strict";
(() => {
  let stored = null;
  try { stored = localStorage.getItem("adaptive-rec-theme"); } catch { /* storage switched off */ }
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
})();
