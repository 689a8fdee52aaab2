-- Gives charges back, or starts their hold anew. The caller sees to it that a charge of a counter
-- is given back once; of a log, the second time finds nothing.
--
-- KEYS[i]    the state that charge i was made to
-- ARGV[1]    now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[i+1]  twelve values in MessagePack: algorithm (see prelude.lua), 1 to renew and 0 to give
--            back, units to give back; of a counter the receipt's moment and its debt before; of a
--            log the charge's id and the units it holds; then five numbers that define the limit it
--            was charged under
-- Returns    per charge the units that were given back of a log, 1 for a hold that was started anew,
--            1 for a counter that changed, and 0 where there was nothing to be done: the charge had
--            ended, or was given back before
local reply = {}
for i, key in ipairs(KEYS) do
  local number, renews, units, charged_at, debt_before, id, held, a, b, c, d, e =
    cmsgpack.unpack(ARGV[i + 1])
  local algorithm = whole(ALGORITHMS[number])
  local limit = { a, b, c, d, e, algorithm = algorithm }
  reply[i] = 0
  -- Given back under the quota that the state is in, which may be another one by now.
  -- What another algorithm has started afresh there knows nothing of the charge, and is left alone.
  if algorithm.is_log then
    limit = algorithm.written_under(limit, key)
    if limit and renews == 1 then
      reply[i] = algorithm.renew(limit, key, NOW, id, held)
    elseif limit then
      reply[i] = algorithm.give_back(limit, key, NOW, id, held, units)
    end
  elseif renews == 0 and not is_of_another(redis.pcall('GET', key)) then
    local state, written_under, text = stored_state(limit, key)
    -- What a bucket owed before, in ticks of another quota, says nothing here.
    if written_under ~= limit then debt_before = 0 end
    local after = algorithm.refund(written_under, state, NOW, units, charged_at, debt_before)
    local peek = algorithm.decide(written_under, after, NOW, 0)
    save_state(written_under, key, after, text, peek[RESET_AFTER])
    for j = 1, algorithm.counters do
      if after[j] ~= state[j] then reply[i] = 1 end
    end
  end
end
return reply
