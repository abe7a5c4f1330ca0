"""One simulated replica: vLLM's HTTP API, metrics and KV-cache behaviour without a model behind it.

`parse_options(argv)` and `main(options)` are the command, `serve(options)` the same inside a running loop, `Server(options)`
with `start()`, `url` and `stop()` a replica inside a test. `Engine` alone is the discrete core, for replays.
"""

from replicas.simulator.engine import Engine, Job, Step
from replicas.simulator.options import Options, parse_options
from replicas.simulator.presets import PRESETS, Cost, Preset
from replicas.simulator.server import Server, main, serve

__all__ = ["PRESETS", "Cost", "Engine", "Job", "Options", "Preset", "Server", "Step", "main", "parse_options", "serve"]
