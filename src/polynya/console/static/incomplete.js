// Say that the console did not load, as when the network changes meanwhile: a classic script, because a module that cannot load its imports never runs.
addEventListener(
  "error",
  (event) => {
    if (!(event.target instanceof HTMLScriptElement)) return;
    document.getElementById("loading").hidden = true;
    document.getElementById("incomplete").hidden = false;
    document.getElementById("reload").addEventListener("click", () => location.reload());
  },
  true,
);
