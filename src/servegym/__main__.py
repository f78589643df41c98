"""`python -m servegym` and the `servegym` command."""


def main() -> None:
    from servegym.cli.app import run

    run()


if __name__ == "__main__":
    main()
