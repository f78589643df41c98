"""`python -m servegym` and the `servegym` command."""

import atexit
import gc


def main() -> None:
    # Most of what a command makes at first are modules, which stay: to look for garbage as often as Python does by
    # default takes a sixth of a short command's time.
    gc.set_threshold(100_000, 50, 50)
    atexit.register(gc.freeze)  # at the end memory is given back as a whole: no need to look for garbage in it
    from servegym.simulator.compilation.locks import no_garbage_collection

    with no_garbage_collection():  # what has been imported counts as old afterwards
        from servegym.cli.app import run
    run()


if __name__ == "__main__":
    main()
