"""One call of one tool: the claim on it, the run of its body, and its output. Hooks run their code here too."""
