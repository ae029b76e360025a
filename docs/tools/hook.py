"""MkDocs hook: add the generated pages of the reference, and copies of repository files that pages link to.

In the repository a link such as `../configs/base.toml` leads to a file. In the site it leads to a copy under `source/`, with
.txt added so that browsers show it. Names for screen readers that the theme leaves out are added to each page.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

TOOLS = Path(__file__).parent
ROOT = TOOLS.parent.parent
SEARCH = 'data-md-component="search" role="dialog"'
OPTION = re.compile(r"(?<![^\s=,(>])(-[^\s<]{1,24})(?![^\s<])")
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+)")


def on_config(config: Any) -> Any:
    """In a site of several versions (mike sets the variable) each page loads their list, which lies beside their folders."""
    if os.environ.get("MIKE_DOCS_VERSION"):
        config.extra_javascript[:0] = ["../versions.js", "assets/versions.js"]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the reference, and copies of linked repository files."""
    if str(TOOLS) not in sys.path:
        sys.path.insert(0, str(TOOLS))
    from reference import pages

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    for page in files.documentation_pages():
        for _, link in LINK.findall(page.content_string):
            path = outside(page.src_uri, link)
            if path and files.get_file_from_path(copied(path)) is None:
                if not (ROOT / path).is_file():
                    raise PluginError(f"{page.src_uri} links to {path}, which is no file of the repository")
                files.append(File.generated(config, copied(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Redirect links that leave docs/ to the copies."""

    def redirected(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[2])
        if path is None:
            return match[0]
        return match[1] + posixpath.relpath(copied(path), posixpath.dirname(page.file.src_uri) or ".")

    return LINK.sub(redirected, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep the options of commands within a line: a browser breaks `--data` after its dashes."""
    return re.sub(r"<code>[^<]*</code>", lambda code: OPTION.sub(r'<span class="option">\1</span>', code[0]), html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog, and the menu of a section by its title: the theme's label of a section with a page has no text."""
    output = output.replace(SEARCH, f'{SEARCH} aria-label="Search"')
    output = re.sub(r'aria-labelledby="(__nav_\w+)_label"', r'aria-labelledby="\1_title"', output)
    return re.sub(r'(<label class="md-nav__title") (for="(__nav_\w+)")', r'\1 id="\3_title" \2', output)


def outside(page: str, link: str) -> str | None:
    """The repository path of a link that leaves docs/, else None."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith("docs/") else path


def copied(path: str) -> str:
    """The path of a repository file's copy in the site."""
    return f"source/{path}.txt"
