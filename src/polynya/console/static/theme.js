// Apply the chosen theme before the first paint: a classic script, so that the page does not flash. The system's theme is the default.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("polynya.theme");
  } catch {
    // storage may be off; the system's theme applies
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
