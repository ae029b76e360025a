// The switch of versions in the header. Their list is a script beside the folders of the versions: a page that was opened from a disk
// may not read versions.json.
const addVersionSwitch = (versions) => {
  const { base } = JSON.parse(document.getElementById("__config").textContent);
  const root = new URL(`${base}/../`, location);
  const folder = new URL(`${base}/`, location).pathname.split("/").at(-2);
  const current = versions.find(({ version, aliases }) => [version, ...aliases].includes(decodeURIComponent(folder)));
  const choice = document.createElement("select");
  choice.className = "version-switch";
  choice.setAttribute("aria-label", "Version");
  for (const { version, title } of versions) choice.add(new Option(title, version, false, version === current?.version));
  choice.addEventListener("change", () => location.assign(new URL(`${choice.value}/index.html`, root)));
  document.querySelector(".md-header__title").after(choice);
};
if (window.docsVersions) addVersionSwitch(window.docsVersions);
