"""Loads torchvision when it is imported, as worker processes need it that read photos."""
from inputs import import_torchvision

import_torchvision()
