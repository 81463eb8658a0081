"""What looks at the data, and what computes again where they are unfit."""
