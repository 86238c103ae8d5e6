"""Messages about one's own jobs: `notify`."""

from __future__ import annotations

from cli.messages import check_addresses, send

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser


def notify_options(parser: Parser) -> None:
    parser.add_argument("--test", action="store_true", help="send a message to all addresses now")


def notify(options: Namespace) -> int:
    """Check where messages about your jobs go (--notify), and send one as a test.

    The addresses are in ~/.config/carma/notify.conf, which only you may read: one of Apprise's on
    each line, such as mailtos://USER:PASSWORD@HOST or slack://TOKEN.
    """
    if options.test:
        return send("test", "Messages about your jobs arrive here.")
    check_addresses()
    return 0
