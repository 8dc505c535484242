# The shell of a session. Descriptor 8 is the journal, 9 the queue of commands; no command inherits either.
exec 8>&1 9<&0 </dev/null
while IFS=' ' read -r cove_id cove_relay cove_text <&9; do
  command printf '+ %s %s %s\n' "$cove_id" "$cove_relay" "$cove_text" >&8
  cove_text=$(command printf '%b.' "$cove_text")
  command eval "${cove_text%.}" </proc/"$cove_relay"/fd/0 >/proc/"$cove_relay"/fd/1 2>/proc/"$cove_relay"/fd/2 8>&- 9<&-
  command printf -- '- %s %s\n' "$cove_id" "$?" >&8
  command kill "$cove_relay" 2>/dev/null || :
done
