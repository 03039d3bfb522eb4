"""``kronos completion``."""

import click
from click.shell_completion import get_completion_class

PROGRAM = "kronos"
VARIABLE = "_KRONOS_COMPLETE"
"""Where click looks for what a shell asks, by the program's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script by which a shell completes commands and options of `kronos` and `./kronos`.

    \b
    bash    eval "$(./kronos completion bash)"           also in ~/.bashrc
    zsh     eval "$(./kronos completion zsh)"            also in ~/.zshrc, behind compinit
    fish    ./kronos completion fish | source            or into ~/.config/fish/completions/kronos.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three"
    click.echo(kind(ctx.find_root().command, {}, PROGRAM, VARIABLE).source())
