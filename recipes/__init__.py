"""How `data prepare` reads public logs, one file each; those that are CSV-like share `columns.py`.

A recipe imports what it needs of the package. The package finds recipes here by name and imports none of them.
"""

from adaptive_rec.data.prepare.recipe import Recipe

RECIPES = {
    "criteo": Recipe("criteo:CriteoReader", has_times=False, rows_are_lines=True),
    "avazu": Recipe("avazu:AvazuReader", rows_are_lines=True, preset="avazu"),
    "globo": Recipe("globo:GloboReader", rows_version=2),
    "globo_sequence": Recipe(
        "globo_sequence:GloboSequenceReader", rows_version=2, has_history=True, preset="globo_tbsm"
    ),
    "taobao": Recipe("taobao:TaobaoReader", has_history=True, preset="taobao_tbsm"),
    "movietweetings": Recipe("movietweetings:MovieTweetingsReader", preset="movietweetings"),
}
"""The formats by the name that --format takes."""
