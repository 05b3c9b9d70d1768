"""Real data with real clients: loaders, which say where the data come from. No data of others are in the package."""

from adfl_stats.datasets.colour_images import cifar10
from adfl_stats.datasets.dataset import Dataset
from adfl_stats.datasets.images import ImageClients, Images, digits, fashion_mnist, mnist
from adfl_stats.datasets.tables import cnsim, contraception, exam, flights, heart, hsb82, medpar

__all__ = [
    "Dataset",
    "ImageClients",
    "Images",
    "cifar10",
    "cnsim",
    "contraception",
    "digits",
    "exam",
    "fashion_mnist",
    "flights",
    "heart",
    "hsb82",
    "medpar",
    "mnist",
]
