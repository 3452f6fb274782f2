// Comfort only: every page works without it. Nothing is fetched, nothing is kept.
"use strict";
(() => {
  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);

  // A form whose change is its answer: no button needed.
  each("form[data-auto] select", (select) => select.addEventListener("change", () => select.form.requestSubmit()));

  // Text to be copied: a button beside it.
  each("pre[data-copy]", (block) => {
    if (!navigator.clipboard) return;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.innerText);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Select it and copy";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.before(button);
  });

  // "/" leads to the search, as on most pages that have one.
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
    if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const search = document.getElementById("q");
    if (search) { event.preventDefault(); search.focus(); }
  });
})();
