-- Twin of leaky_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, queue, period, max_delay. state: as token_bucket.
local leaky_bucket
if ASKED[3] then
  local standing, repaid_in = token_bucket.standing, token_bucket.repaid_in
  local charged = token_bucket.charged

  local function until_short(limit, delay)
    return max(delay - limit[5], 0)
  end

  local function bounded_by_delay(limit, answer)
    local wait = until_short(limit, answer[RESET_AFTER])
    if wait == 0 then return answer end
    if answer[REMAINING] == 0 then wait = max(wait, answer[NEXT_AFTER]) end
    answer[REMAINING], answer[NEXT_AFTER] = 0, wait
    return answer
  end

  local function decision(limit, outcome, debt, behind, retry_after)
    local answer = token_bucket.decision(limit, outcome, debt, behind, retry_after)
    return bounded_by_delay(limit, answer)
  end

  local function decide(limit, state, now, cost)
    local debt, at, behind = standing(limit, state, now)
    local queue = limit[3]
    if cost > queue then return decision(limit, TOO_COSTLY, debt, behind, NONE), state end
    local price, capacity = cost * limit[1], queue * limit[1]
    local delay = repaid_in(limit, debt, behind)
    local until_room = repaid_in(limit, max(debt - (capacity - price), 0), behind)
    local wait = 0
    if cost ~= 0 then wait = until_short(limit, delay) end
    if until_room == 0 and wait == 0 then
      local answer, after = charged(limit, state, debt, at, behind, cost, price)
      answer[DELAY] = delay
      return bounded_by_delay(limit, answer), after
    end
    return decision(limit, DENIED, debt, behind, max(until_room, wait)), state
  end

  local function more(self)
    token_bucket.more(self)
    local force = self.force
    function self.force(limit, state, now, cost)
      local answer, after = force(limit, state, now, cost)
      return bounded_by_delay(limit, answer), after
    end
  end

  leaky_bucket = {
    header = '1l', first_kept = 1, counters = 2,
    anchored = token_bucket.anchored, decide = decide, more = more,
  }
end
