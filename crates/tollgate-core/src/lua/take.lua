-- Decides the charges of one request and takes them: all of them or none.
--
-- KEYS[i]    the state of charge i; one that comes twice is charged twice, under one limit
-- ARGV[1]    now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[i+1]  ten values in MessagePack: algorithm (see prelude.lua), cost, mode (0 enforce, 1 shadow,
--            2 force, 3 credit), 1 if denied requests count, id, then five numbers that define the
--            limit
-- Returns    per charge ten: outcome (0 allowed, 1 denied, 2 too costly), limit, remaining,
--            reset_after, next_after, retry_after, delay, and the receipt: the cost that was
--            charged, at which moment, and the debt before it; zeroes if the request was denied, so
--            that there is nothing to give back. Waits are in microseconds, -1 if none is known.
--
-- A charge is made if the limit itself allows it, and all that are enforced allow theirs. One that
-- is not made because another limit denied is answered as a peek is, so that its figures are those
-- of the state it left alone. A limit that counts denied requests is charged whatever the verdict,
-- and answers with the figures from after that; but never what it could not ever allow.
--
-- A credit gives back, if the request is allowed, after all that was charged. It denies nothing and
-- is answered as a peek is.
local ANSWER = 10
local ENFORCE, FORCE, CREDIT = 0, 2, 3

-- A limit is also the account of its key. What is kept there follows its five numbers, in the same list:
-- a field with a name costs several times as much.
local STATE, STATE_BEFORE, TEXT, IS_CARRIED, RESETS_AFTER = 6, 7, 8, 9, 10
-- A charge is such a list too.
local LIMIT, COST, MODE, DECIDE, ANSWERED, COUNTS_DENIED = 1, 2, 3, 4, 5, 6

local function is_same(one, other)
  return one[1] == other[1] and one[2] == other[2] and one[3] == other[3]
end

-- Decides each on what the ones before it leave of its key.
local keys, charges, accounts, all_allow = KEYS, {}, {}, true
for i = 1, #keys do
  local key = keys[i]
  local algorithm, cost, mode, count_denied, id, a, b, c, d, e = cmsgpack.unpack(ARGV[i + 1])
  local limit = accounts[key]
  if not limit then
    limit = { a, b, c, d, e, false, false, false, false, 0, algorithm = ALGORITHMS[algorithm] }
    local state, text, is_carried = load_state(limit, key, NOW)
    if not limit.algorithm.is_log then state = limit.algorithm.anchored(limit, state, NOW) end
    limit[STATE], limit[STATE_BEFORE], limit[TEXT], limit[IS_CARRIED] = state, state, text, is_carried
    accounts[key] = limit
  end
  local decide, taken, answer = limit.algorithm.decide, cost, nil
  if mode == FORCE then
    decide = whole(limit.algorithm).force
  elseif mode == CREDIT then
    taken = 0
  end
  answer, limit[STATE] = decide(limit, limit[STATE], NOW, taken, id)
  if answer[OUTCOME] ~= ALLOWED and (mode == ENFORCE or mode == FORCE) then all_allow = false end
  charges[i] = { limit, cost, mode, decide, answer, count_denied == 1 }
end
if not all_allow then
  for _, limit in pairs(accounts) do limit[STATE] = limit[STATE_BEFORE] end
end

-- Settles what is not as it was decided, and answers.
local reply
for i = 1, #charges do
  local charge = charges[i]
  local limit, cost, mode, answer = charge[LIMIT], charge[COST], charge[MODE], charge[ANSWERED]
  local algorithm, outcome = limit.algorithm, answer[OUTCOME]
  local counts_denied = charge[COUNTS_DENIED] and not algorithm.is_log
  if mode == CREDIT then
    if all_allow and algorithm.is_log then
      limit[STATE] = whole(algorithm).credit(limit, limit[STATE], NOW, cost)
    elseif all_allow then
      -- Twin of Counter::credit: as if just charged, so that time has given nothing of it back.
      limit[STATE] = whole(algorithm).refund(limit, limit[STATE], NOW, cost, NOW, 0)
    end
    answer, limit[STATE] = algorithm.decide(limit, limit[STATE], NOW, 0)
  elseif outcome == DENIED and counts_denied and cost > 0 then
    limit[STATE] = whole(algorithm).punish(limit, limit[STATE], NOW, cost)
    limit[IS_CARRIED] = false
    answer = algorithm.decide(limit, limit[STATE], NOW, cost)
  elseif outcome == ALLOWED and not all_allow then
    local delay = answer[DELAY]
    if counts_denied then
      answer, limit[STATE] = charge[DECIDE](limit, limit[STATE], NOW, cost)
    else
      answer, limit[STATE] = algorithm.decide(limit, limit[STATE], NOW, 0)
    end
    -- Only the figures are those of now: a key that comes twice may have been punished meanwhile.
    answer[OUTCOME], answer[RETRY_AFTER], answer[DELAY] = ALLOWED, NONE, delay
  end
  if not all_allow or mode == CREDIT then
    answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = 0, 0, 0
  elseif limit.leases then
    -- Time repays what is owed, not what is out on lease.
    local outstanding = leases_of(whole(algorithm))
    answer[DEBT_BEFORE] = max(answer[DEBT_BEFORE] - outstanding(limit, limit.leases), 0)
  end
  limit[RESETS_AFTER] = answer[RESET_AFTER]
  if not reply then
    reply = answer
  else
    local last = (i - 1) * ANSWER
    for j = 1, ANSWER do reply[last + j] = answer[j] end
  end
end
-- Carrying over rounds up, so a state is written under another quota only with a charge: a key that
-- is merely looked at under two quotas by turns must not lose by it.
for i = 1, #keys do
  local key = keys[i]
  local limit = accounts[key]
  accounts[key] = nil -- a key that comes again is written once
  if limit and not (limit[IS_CARRIED] and is_same(limit[STATE], limit[STATE_BEFORE])) then
    save_state(limit, key, limit[STATE], limit[TEXT], limit[RESETS_AFTER])
  end
end
return reply or {}
