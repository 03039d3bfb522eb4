"""How the checkpoint ``kronos_model/bundled/kronos-tiny`` was made and is tested. Not part of the wheel."""
