"""Loads torchvision when it is imported: what the server of worker processes loads where photos are
read."""
from files.photos import import_torchvision

import_torchvision()
