# curl at Chat Completions, as a script has it: a whole completion, a stream, and errors. Prints JSON.
ask() {
  curl --silent --show-error --no-buffer --fail-with-body "$OPENAI_BASE_URL/chat/completions" \
    --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" "$@"
}
text() { sed --quiet 's/.*"content": "\([^"]*\)".*/\1/p' | tr --delete '\n'; }
message() { echo "{\"model\": \"$1\", \"messages\": [{\"role\": \"user\", \"content\": \"$2\"}] $3}"; }

chat=$(ask --data "$(message chat "effect one")" | text)
stream=$(ask --data "$(message stream "effect one" ', "stream": true')" | text)
unknown_model=$(ask --data "$(message unknown_model hello)" | sed --quiet 's/.*"code": *"\([^"]*\)".*/\1/p')
refused=$(ask --data "$(message refused hello ', "n": 2')" | sed --quiet 's/.*"message": *"\(n: [^;"]*\).*/\1/p')
for name in chat stream unknown_model refused; do said="$said, \"$name\": \"$(eval "echo \$$name")\""; done
echo "{${said#, }}"
