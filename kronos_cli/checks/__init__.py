"""What is wrong with this installation: checks that find something, each with its remedy. No torch."""
