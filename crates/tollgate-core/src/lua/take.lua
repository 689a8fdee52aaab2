-- Decides the charges of one request and takes them: all of them or none.
--
-- KEYS[i]   the state of charge i; no key comes twice
-- ARGV[1]   now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[..]  per charge ten: algorithm (1 sliding_window, 2 token_bucket, 3 leaky_bucket,
--           4 fixed_window, 5 sliding_log, 6 concurrency), cost, mode (0 enforce, 1 shadow,
--           2 force), 1 if denied requests count, id, then five numbers that define the limit
-- Returns   per charge ten: outcome (0 allowed, 1 denied, 2 too costly), limit, remaining,
--           reset_after, next_after, retry_after, delay, and the receipt: the cost that was
--           charged, at which moment, and the debt before it; zeroes if the request was denied, so
--           that there is nothing to give back. Waits are in microseconds, -1 if none is known.
--
-- A charge is made if the limit itself allows it, and all that are enforced allow theirs. One that
-- is not made because another limit denied is answered as a peek is, so that its figures are those
-- of the state it left alone. A limit that counts denied requests is charged whatever the verdict,
-- and answers with the figures from after that; but never what it could not ever allow.
local CHARGE = 10
local SHADOW, FORCE = '1', '2'

local charges, all_allow = {}, true
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * CHARGE
  local limit, cost, mode = limit_at(at, at + 5), tonumber(ARGV[at + 1]), ARGV[at + 2]
  local state, text = load_state(limit, key, NOW)
  local decide = limit.decide
  if mode == FORCE then decide = limit.force end
  local answer, after = decide(state, NOW, cost, ARGV[at + 4])
  if answer[OUTCOME] ~= ALLOWED and mode ~= SHADOW then all_allow = false end
  local counts_denied = limit.punish and ARGV[at + 3] == '1'
  charges[i] = {
    limit = limit, cost = cost, counts_denied = counts_denied,
    state = state, text = text, answer = answer, after = after,
  }
end

local reply
for i, key in ipairs(KEYS) do
  local charge = charges[i]
  local limit, cost, answer, after = charge.limit, charge.cost, charge.answer, charge.after
  if answer[OUTCOME] == ALLOWED and not (all_allow or charge.counts_denied) then
    answer, after = limit.decide(charge.state, NOW, 0)
  elseif answer[OUTCOME] == DENIED and charge.counts_denied then
    answer, after = limit.decide(limit.punish(charge.state, NOW, cost), NOW, cost)
  end
  if not all_allow then answer[8], answer[9], answer[10] = 0, 0, 0 end
  save_state(limit, key, after, charge.text, answer[RESET_AFTER])
  if not reply then
    reply = answer
  else
    for j = 1, CHARGE do reply[#reply + 1] = answer[j] end
  end
end
return reply
