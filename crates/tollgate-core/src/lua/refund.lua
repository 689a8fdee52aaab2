-- Gives charges back, or starts their hold anew. The caller sees to it that a charge of a counter is
-- given back once; of a log, the second time finds nothing.
--
-- KEYS[i]   the state that charge i was made to; no key comes twice
-- ARGV[1]   now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[..]  per charge twelve: algorithm (see take.lua), 1 to renew and 0 to give back, units to
--           give back; of a counter the receipt's moment and its debt before; of a log the charge's
--           id and the units it holds; then five numbers that define the limit
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
  if limit.is_log then
    if ARGV[at + 1] == '1' then
      reply[i] = limit.renew(key, NOW, id, held)
    else
      reply[i] = limit.give_back(key, NOW, id, held, units)
    end
  elseif ARGV[at + 1] == '0' then
    local state, text = load_state(limit, key, NOW)
    local after = limit.refund(state, NOW, units, charged_at, debt_before)
    local peek = limit.decide(after, NOW, 0)
    save_state(limit, key, after, text, peek[RESET_AFTER])
    for j = 1, limit.counters do
      if after[j] ~= state[j] then reply[i] = 1 end
    end
  end
end
return reply
