-- Decides one request, and hands out units ahead of their use. Twin of Leasable::lease.
--
-- KEYS[1]   the state
-- ARGV[1]   now in microseconds, or '' to read this server's clock (production always does)
-- ARGV[2]   eleven values in MessagePack: algorithm (2 token_bucket, 4 fixed_window), id of the lease,
--           units of it spent, units of it given back, cost of the request, units wanted on lease,
--           then five numbers that define the limit
-- Returns   1 if the request is allowed, units granted, units out on this lease, the two halves of
--           the state, now, and the moment and the debt before that make the request's receipt
--
-- Running it twice would hand out units that nobody knows of: a call that may have run is not sent
-- again.
local LEASES_MAX = 64

local key = KEYS[1]
local number, id, spent, returned, cost, want, a, b, c, d, e = cmsgpack.unpack(ARGV[2])
local algorithm = whole(ALGORITHMS[number])
local limit = { a, b, c, d, e, algorithm = algorithm }
local is_bucket = algorithm == token_bucket
local outstanding, _, remove_lease
if is_bucket then outstanding, _, remove_lease = leases_of(algorithm) end

-- Twin of Leasable::without.
local function without(state, units)
  local left = state[1] - algorithm.with_used(limit, units, 0)[1]
  if left <= 0 then return { 0, 0 } end
  return { left, state[2] }
end

local state, text, is_carried = load_state(limit, key, NOW)
local leases, units = limit.leases or {}, 0

if is_bucket then
  for i = 1, #leases, 3 do
    if leases[i] == id then
      units = leases[i + 1]
      remove_lease(leases, i)
      break
    end
  end
  -- What was spent of the lease stays used. What was spent beyond what is known of, because the
  -- lease ended on the way or the state was lost, is charged now.
  local known = min(spent, units)
  units = units - known
  state = algorithm.anchored(limit, state, NOW)
  if spent > known then
    local _, after = algorithm.force(limit, state, NOW, spent - known)
    state = after
  end
  local back = min(returned, units)
  units = units - back
  state = without(state, back)
elseif returned > 0 then
  state = algorithm.refund(limit, state, NOW, returned, id)
end

local answer, after = algorithm.decide(limit, algorithm.anchored(limit, state, NOW), NOW, cost)
state = after
local is_allowed, charged_at = answer[OUTCOME] == ALLOWED, answer[CHARGED_AT]
local debt_before = answer[DEBT_BEFORE]
if is_bucket then
  local out = outstanding(limit, leases) + algorithm.with_used(limit, units, 0)[1]
  debt_before = max(debt_before - out, 0)
end

local granted = 0
if is_allowed and (units > 0 or #leases < 3 * LEASES_MAX) then
  granted = min(want, div_ceil(answer[REMAINING], 2))
  answer, state = algorithm.decide(limit, state, NOW, granted)
end
units = units + granted
if is_bucket and units > 0 then
  local last = #leases
  leases[last + 1], leases[last + 2], leases[last + 3] = id, units, plus(NOW, LEASE_MICROS)
end

-- As in take.lua: what was carried over is written only if something was done.
limit.leases = #leases > 0 and leases or nil
if not is_carried or limit.leases or cost + spent + returned + granted > 0 then
  save_state(limit, key, state, text, answer[RESET_AFTER])
end
return {
  is_allowed and 1 or 0, granted, units, state[1], state[2], NOW, charged_at, debt_before,
}
