"""Sphinx settings; ``python docs/build.py`` lays out the sources and runs it."""

from importlib import metadata

project = "adfl_stats"
author = "The adfl_stats developers"
copyright = "The adfl_stats developers, BSD-3-Clause"
release = metadata.version("adfl-stats")

extensions = ["myst_nb", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.mathjax"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# Vignettes come with their output; see executed.py.
nb_execution_mode = "off"
nb_merge_streams = True

# Page builders and readers have no network: the file is copied from a package (see build.py), never from a CDN.
mathjax_path = "tex-svg.js"

autosummary_generate = True
autodoc_typehints = "none"
# The templates list the members, with their own documentation.
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/logo.svg"
# Light or dark as the reader's system is.
html_context = {"default_mode": "auto"}
html_title = f"adfl_stats {release}"
html_show_sourcelink = False
html_theme_options = {
    "logo": {"image_light": "_static/logo.svg", "image_dark": "_static/logo.svg", "text": html_title},
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
