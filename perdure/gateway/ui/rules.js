export default {
  "agent_start": { "turn": "begins" },
  "agent_end": { "turn": "ends" },
  "generation_start": { "model": "model" },
  "generation_wait": { "model": "pace" },
  "generation_retry": { "model": "retry", "pays": true },
  "generation_end": { "model": null, "pays": true },
  "generation_error": { "model": null, "pays": true },
  "compaction_event started": { "model": "compaction" },
  "compaction_event": { "model": null, "pays": true },
  "tool_start": { "opens": ["tools", "call_id"] },
  "tool_end": { "closes": ["tools", "call_id"] },
  "tool_error": { "closes": ["tools", "call_id"] },
  "delegate_start": { "opens": ["delegates", "call_id"] },
  "delegate_end": { "closes": ["delegates", "call_id"], "pays": true },
  "user_input_required": { "opens": ["people", "request_id"] },
  "user_input_received": { "closes": ["people", "request_id"] }
}
