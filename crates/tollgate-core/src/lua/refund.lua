-- Gives charges back, or starts their hold anew. The caller sees to it that a charge of a counter
-- is given back once; of a log, the second time finds nothing.
--
-- KEYS[i]   the state that charge i was made to
-- ARGV[1]   now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[..]  per charge twelve: algorithm (see take.lua), 1 to renew and 0 to give back, units to
--           give back; of a counter the receipt's moment and its debt before; of a log the charge's
--           id and the units it holds; then five numbers that define the limit it was charged
--           under
-- Returns   per charge the units that were given back of a log, 1 for a hold that was started anew,
--           1 for a counter that changed, and 0 where there was nothing to be done: the charge had
--           ended, or was given back before
local CHARGE = 12

local reply = {}
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * CHARGE
  local limit = limit_at(at, at + 7)
  local units, charged_at, debt_before =
    tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local id, held = ARGV[at + 5], tonumber(ARGV[at + 6])
  reply[i] = 0
  -- Given back under the quota that the state is in, which may be another one by now.
  if limit.is_log then
    limit = limit.written_under(key)
    if ARGV[at + 1] == '1' then
      reply[i] = limit.renew(key, NOW, id, held)
    else
      reply[i] = limit.give_back(key, NOW, id, held, units)
    end
  elseif ARGV[at + 1] == '0' then
    local state, written_under, text = stored_state(limit, key)
    -- What a bucket owed before, in ticks of another quota, says nothing here.
    if written_under ~= limit then debt_before = 0 end
    local after = written_under.refund(state, NOW, units, charged_at, debt_before)
    local peek = written_under.decide(after, NOW, 0)
    save_state(written_under, key, after, text, peek[RESET_AFTER])
    for j = 1, limit.counters do
      if after[j] ~= state[j] then reply[i] = 1 end
    end
  end
end
return reply
