"""``kronos completion``."""

import click
from click.shell_completion import get_completion_class

VARIABLE = "_KRONOS_COMPLETE"
"""click derives this name from the program's name."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell, for `kronos` and `./kronos`.

    \b
    bash    eval "$(./kronos completion bash)"           also in ~/.bashrc
    zsh     eval "$(./kronos completion zsh)"            also in ~/.zshrc, after compinit
    fish    ./kronos completion fish | source            or write it to ~/.config/fish/completions/kronos.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click supports all three shells"
    click.echo(kind(ctx.find_root().command, {}, "kronos", VARIABLE).source())
