-- Twin of leaky_bucket.rs.
-- limit: ticks_per_unit, ticks_per_micro, queue, period, max_delay. state: as token_bucket.
local function leaky_bucket(limit)
  local bucket = {}
  local self = token_bucket(limit, bucket)
  local queue, max_delay = limit[3], limit[5]

  local function until_short(delay)
    return max(delay - max_delay, 0)
  end

  local function bounded_by_delay(answer)
    local wait = until_short(answer[RESET_AFTER])
    if wait == 0 then return answer end
    if answer[REMAINING] == 0 then wait = max(wait, answer[NEXT_AFTER]) end
    answer[REMAINING], answer[NEXT_AFTER] = 0, wait
    return answer
  end

  local function decision(outcome, debt, behind, retry_after)
    return bounded_by_delay(bucket.decision(outcome, debt, behind, retry_after))
  end

  local function in_time(answer, state)
    return bounded_by_delay(answer), state
  end

  function self.decide(state, now, cost)
    state = bucket.anchored(state, now)
    local debt, at, behind = bucket.standing(state, now)
    if cost > queue then return decision(TOO_COSTLY, debt, behind, NONE), state end
    local price = bucket.price_of(cost)
    local delay = bucket.repaid_in(debt, behind)
    local until_room = bucket.repaid_in(max(debt - (bucket.capacity - price), 0), behind)
    local wait = 0
    if cost ~= 0 then wait = until_short(delay) end
    if until_room == 0 and wait == 0 then
      return in_time(bucket.charged(state, debt, at, behind, cost, price, delay))
    end
    return decision(DENIED, debt, behind, max(until_room, wait)), state
  end

  function self.force(state, now, cost)
    return in_time(bucket.force(state, now, cost))
  end

  self.letter = 'l'
  return self
end
