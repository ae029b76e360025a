// Boxes that scroll sideways can be reached by the keyboard, and the buttons of blocks are no landmarks. The theme adds both while the
// page is read, so changes of the page are watched.
const mendBoxes = () => {
  for (const box of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
  for (const buttons of document.querySelectorAll("nav.md-code__nav")) buttons.setAttribute("role", "none");
};
let nextFrame = 0;
const mendSoon = () => {
  cancelAnimationFrame(nextFrame);
  nextFrame = requestAnimationFrame(mendBoxes);
};
addEventListener("resize", mendSoon);
new MutationObserver(mendSoon).observe(document.querySelector(".md-content"), { childList: true, subtree: true });
mendSoon();
