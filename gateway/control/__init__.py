"""Loops beside the data plane that watch servers and files. They only produce facts."""

from gateway.control.client import Client
from gateway.control.control import Control
from gateway.control.loops import PollLoop
from gateway.control.prober import Prober
from gateway.control.scraper import Scraper
from gateway.control.watch import FileWatcher

__all__ = ["Client", "Control", "FileWatcher", "PollLoop", "Prober", "Scraper"]
