-- Decides the charges of one request and takes them: all of them or none.
--
-- KEYS[i]   the state of charge i; one that comes twice is charged twice, under one limit
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

local function is_same(one, other)
  return one[1] == other[1] and one[2] == other[2] and one[3] == other[3]
end

-- Decides each on what the ones before it leave of its key.
local charges, accounts, all_allow = {}, {}, true
for i, key in ipairs(KEYS) do
  local at = 2 + (i - 1) * CHARGE
  local account = accounts[key]
  if not account then
    local limit = limit_at(at, at + 5)
    local state, text, is_carried = load_state(limit, key, NOW)
    if limit.anchored then state = limit.anchored(state, NOW) end
    account = {
      limit = limit, state_before = state, state = state, text = text, is_carried = is_carried,
    }
    accounts[key] = account
  end
  local limit, cost, mode = account.limit, tonumber(ARGV[at + 1]), ARGV[at + 2]
  local decide, answer = limit.decide, nil
  if mode == FORCE then decide = limit.force end
  answer, account.state = decide(account.state, NOW, cost, ARGV[at + 4])
  if answer[OUTCOME] ~= ALLOWED and mode ~= SHADOW then all_allow = false end
  charges[i] = { account = account, cost = cost, decide = decide, answer = answer }
end
if not all_allow then
  for _, charge in ipairs(charges) do charge.account.state = charge.account.state_before end
end

-- Settles what is not as it was decided, and answers.
local reply
for i, charge in ipairs(charges) do
  local account, cost, answer = charge.account, charge.cost, charge.answer
  local limit, outcome = account.limit, answer[OUTCOME]
  local counts_denied = limit.punish and ARGV[5 + (i - 1) * CHARGE] == '1'
  if outcome == DENIED and counts_denied then
    local punished = limit.punish(account.state, NOW, cost)
    answer, account.state = limit.decide(punished, NOW, cost)
  elseif outcome == ALLOWED and not all_allow then
    if counts_denied then
      answer, account.state = charge.decide(account.state, NOW, cost)
    else
      answer, account.state = limit.decide(account.state, NOW, 0)
    end
  end
  if not all_allow then
    answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = 0, 0, 0
  elseif limit.leases then
    -- Time repays what is owed, not what is out on lease.
    answer[DEBT_BEFORE] = max(answer[DEBT_BEFORE] - outstanding(limit, limit.leases), 0)
  end
  account.reset_after = answer[RESET_AFTER]
  if not reply then
    reply = answer
  else
    for j = 1, CHARGE do reply[#reply + 1] = answer[j] end
  end
end
-- Carrying over rounds up, so a state is written under another quota only with a charge: a key that
-- is merely looked at under two quotas by turns must not lose by it.
for key, account in pairs(accounts) do
  if not (account.is_carried and is_same(account.state, account.state_before)) then
    save_state(account.limit, key, account.state, account.text, account.reset_after)
  end
end
return reply or {}
