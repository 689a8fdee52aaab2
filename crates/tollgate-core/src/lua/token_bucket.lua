-- Twin of token_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, burst, period. state: debt, updated_at.
local token_bucket
if ASKED[2] or ASKED[3] then
  local function anchored(limit, state, now)
    local latest = plus(now, limit[4])
    if state[2] <= latest then return state end
    return { state[1], latest }
  end

  -- The debt now, the moment it stands at, and how far the clock is behind that.
  local function standing(limit, state, now)
    local debt, updated_at = state[1], state[2]
    if now < updated_at then return debt, updated_at, updated_at - now end
    -- A product of 2^53 or more is more than any debt.
    return max(debt - (now - updated_at) * limit[2], 0), now, 0
  end

  local function repaid_in(limit, ticks, behind)
    if ticks == 0 then return 0 end
    -- Most quotas have one tick a microsecond.
    if limit[2] == 1 then return plus(ticks, behind) end
    return plus(div_ceil(ticks, limit[2]), behind)
  end

  local function decision(limit, outcome, debt, behind, retry_after)
    local ticks_per_unit, burst = limit[1], limit[3]
    local capacity = burst * ticks_per_unit -- at most CAPACITY_TICKS_MAX
    local remaining = div_floor(max(capacity - debt, 0), ticks_per_unit)
    local next = 0
    if remaining ~= burst then
      -- In this order, since debt and capacity together may be more than 2^53.
      next = debt - (capacity - (remaining + 1) * ticks_per_unit)
    end
    local reset_after, next_after = repaid_in(limit, debt, behind), repaid_in(limit, next, behind)
    return { outcome, burst, remaining, reset_after, next_after, retry_after, 0, 0, 0, 0 }
  end

  local function charged(limit, state, debt, at, behind, cost, price)
    local answer = decision(limit, ALLOWED, debt + price, behind, NONE)
    answer[CHARGED], answer[CHARGED_AT], answer[DEBT_BEFORE] = cost, at, debt
    if cost == 0 then return answer, state end
    return answer, { debt + price, at }
  end

  local function decide(limit, state, now, cost)
    local debt, at, behind = standing(limit, state, now)
    if cost > limit[3] then return decision(limit, TOO_COSTLY, debt, behind, NONE), state end
    local price = cost * limit[1]
    local room = limit[3] * limit[1] - price
    if debt > room then
      local retry_after = repaid_in(limit, debt - room, behind)
      return decision(limit, DENIED, debt, behind, retry_after), state
    end
    return charged(limit, state, debt, at, behind, cost, price)
  end

  local function more(self)
    -- A product of 2^53 or more is cut off.
    local function price_of(limit, cost)
      return min(cost * limit[1], EXACT_MAX)
    end

    function self.force(limit, state, now, cost)
      local debt, at, behind = standing(limit, state, now)
      local price = min(price_of(limit, cost), EXACT_MAX - debt)
      return charged(limit, state, debt, at, behind, cost, price)
    end

    function self.punish(limit, state, now, cost)
      if cost == 0 then return state end
      local debt, at = standing(limit, state, now)
      -- A sum of 2^53 or more is cut off: what it is cut off at is below.
      local most = min(2 * limit[3] * limit[1], EXACT_MAX)
      return { min(debt + price_of(limit, cost), max(most, debt)), at }
    end

    function self.refund(limit, state, now, cost, charged_at, debt_before)
      local reached = max(now, state[2])
      state = anchored(limit, state, now)
      if charged_at > reached then return state end
      local debt, at = standing(limit, state, now)
      debt_before = min(debt_before, EXACT_MAX)
      local price = min(price_of(limit, cost), EXACT_MAX - debt_before)
      -- A product of 2^53 or more is more than the debt it is taken from.
      local line = max(debt_before + price - (reached - charged_at) * limit[2], 0)
      local back = min(line, price, debt)
      if back == 0 then return state end
      if back == debt then return { 0, 0, 0 } end
      return { debt - back, at }
    end

    function self.used(limit, state, now)
      local debt, at = standing(limit, state, now)
      return min(div_ceil(debt, limit[1]), COUNT_MAX), at
    end

    function self.with_used(limit, units, now)
      return { price_of(limit, units), now }
    end
  end

  token_bucket = {
    header = '1t', first_kept = 1, counters = 2,
    anchored = anchored, decide = decide, more = more,
  }
  if ASKED[3] then
    -- What a leaky bucket is built on.
    token_bucket.standing, token_bucket.repaid_in = standing, repaid_in
    token_bucket.decision, token_bucket.charged = decision, charged
  end
end
