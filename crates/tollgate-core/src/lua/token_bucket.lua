-- Twin of token_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, burst, period. state: debt, updated_at.
local function token_bucket(limit, inside)
  local ticks_per_unit, ticks_per_micro, burst, period = limit[1], limit[2], limit[3], limit[4]
  local capacity = burst * ticks_per_unit -- at most CAPACITY_TICKS_MAX

  -- A product of 2^53 or more is cut off.
  local function price_of(cost)
    return min(cost * ticks_per_unit, EXACT_MAX)
  end

  local function anchored(state, now)
    local latest = plus(now, period)
    if state[2] <= latest then return state end
    return { state[1], latest }
  end

  -- The debt now, the moment it stands at, and how far the clock is behind that.
  local function standing(state, now)
    local debt, updated_at = state[1], state[2]
    if now < updated_at then return debt, updated_at, updated_at - now end
    -- A product of 2^53 or more is more than any debt.
    return max(debt - (now - updated_at) * ticks_per_micro, 0), now, 0
  end

  local function repaid_in(ticks, behind)
    if ticks == 0 then return 0 end
    return plus(div_ceil(ticks, ticks_per_micro), behind)
  end

  local function decision(outcome, debt, behind, retry_after)
    local remaining = div_floor(max(capacity - debt, 0), ticks_per_unit)
    local next = 0
    if remaining ~= burst then
      -- In this order, since debt and capacity together may be more than 2^53.
      next = debt - (capacity - (remaining + 1) * ticks_per_unit)
    end
    local reset_after, next_after = repaid_in(debt, behind), repaid_in(next, behind)
    return { outcome, burst, remaining, reset_after, next_after, retry_after, 0, 0, 0, 0 }
  end

  local function charged(state, debt, at, behind, cost, price, delay)
    local answer = decision(ALLOWED, debt + price, behind, NONE)
    answer[DELAY], answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = delay, cost, at, debt
    if price == 0 then return answer, state end
    return answer, { debt + price, at }
  end

  local function decide(state, now, cost)
    state = anchored(state, now)
    local debt, at, behind = standing(state, now)
    if cost > burst then return decision(TOO_COSTLY, debt, behind, NONE), state end
    local price = price_of(cost)
    local room = capacity - price
    if debt > room then
      return decision(DENIED, debt, behind, repaid_in(debt - room, behind)), state
    end
    return charged(state, debt, at, behind, cost, price, 0)
  end

  local function force(state, now, cost)
    state = anchored(state, now)
    local debt, at, behind = standing(state, now)
    local price = min(price_of(cost), EXACT_MAX - debt)
    return charged(state, debt, at, behind, cost, price, 0)
  end

  local function punish(state, now, cost)
    state = anchored(state, now)
    if cost == 0 then return state end
    local debt, at = standing(state, now)
    -- A sum of 2^53 or more is cut off: what it is cut off at is below.
    return { min(debt + price_of(cost), max(min(2 * capacity, EXACT_MAX), debt)), at }
  end

  local function refund(state, now, cost, charged_at, debt_before)
    local reached = max(now, state[2])
    state = anchored(state, now)
    if charged_at > reached then return state end
    local debt, at = standing(state, now)
    debt_before = min(debt_before, EXACT_MAX)
    local price = min(price_of(cost), EXACT_MAX - debt_before)
    -- A product of 2^53 or more is more than the debt it is taken from.
    local line = max(debt_before + price - (reached - charged_at) * ticks_per_micro, 0)
    local back = min(line, price, debt)
    if back == 0 then return state end
    if back == debt then return { 0, 0 } end
    return { debt - back, at }
  end

  local function used(state, now)
    local debt, at = standing(state, now)
    return min(div_ceil(debt, ticks_per_unit), COUNT_MAX), at
  end

  local function with_used(units, now)
    return { price_of(units), now }
  end

  if inside then
    -- What a leaky bucket is built on.
    inside.capacity, inside.price_of, inside.anchored = capacity, price_of, anchored
    inside.standing, inside.repaid_in = standing, repaid_in
    inside.decision, inside.charged, inside.force = decision, charged, force
  end
  return {
    letter = 't', first_kept = 1, counters = 2,
    decide = decide, force = force, punish = punish, refund = refund,
    anchored = anchored, used = used, with_used = with_used,
  }
end
