SELECT weekday, category, sum(price)
FROM sales
JOIN dates ON max(sales.date_key = dates.date_key) OVER (ORDER BY month)
JOIN items ON sales.item_id = items.item_id
WHERE month <= 2
GROUP BY weekday, category