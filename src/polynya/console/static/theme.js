// The chosen theme, before anything is drawn: a classic script, so that the page does not flash. Without a choice the system decides.
(() => {
  let chosen = null;
  try {
    chosen = localStorage.getItem("polynya.theme");
  } catch {
    // storage may be off; the system's theme is used
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
