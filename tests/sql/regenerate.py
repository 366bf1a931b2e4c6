"""Writes the expectations of the golden queries anew: `python -m tests.sql.regenerate`. Read the difference before you keep it."""

from tests.sql.golden import expectations


def main() -> None:
    """Write every file whose text changed and name it."""
    for path, make in expectations():
        text = make()
        if not path.exists() or path.read_bytes().decode("utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="")
            print(f"{path.parent.name}/{path.name}")


if __name__ == "__main__":
    main()
